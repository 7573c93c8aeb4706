-- head: the constants in which the forms of a script differ. This form is for a server with classic notifications.
local PUBLISH, NUMSUB, LEGACY = 'PUBLISH', 'NUMSUB', false
