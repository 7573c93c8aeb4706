-- head: the constants in which the forms of a script differ. This form is for a server that refuses the first line of
-- a script. It may be older than Redis 7, and then it doesn't know the options GT and LT of PEXPIRE.
local PUBLISH, NUMSUB, LEGACY = 'PUBLISH', 'NUMSUB', true
