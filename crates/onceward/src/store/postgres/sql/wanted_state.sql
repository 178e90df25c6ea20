-- Whether a marked key may have changed before a group could see the mark.
SELECT wanted_state($1, $2, $3, $4)
