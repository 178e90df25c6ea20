-- Marks keys as waited for. A statement of its own, so that the mark is there before
-- wanted_state.sql looks: closes the race of a completion between our look and our mark.
SELECT want($1)
