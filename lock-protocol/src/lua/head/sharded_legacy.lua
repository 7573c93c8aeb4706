-- head: the constants in which the forms of a script differ. This form is for a node of a cluster that refuses the
-- first line of a script.
local PUBLISH, NUMSUB, LEGACY = 'SPUBLISH', 'SHARDNUMSUB', true
