-- head: the constants in which the forms of a script differ. This form is for a node of a cluster, which counts only
-- its own subscribers of classic notifications.
local PUBLISH, NUMSUB, LEGACY = 'SPUBLISH', 'SHARDNUMSUB', false
