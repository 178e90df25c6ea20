-- Which leases are counted anew because the machine was started again, and from which instant on:
-- records up to a stamp. It is kept because the next opening in the same boot has to know it too.
-- The seal is keyed as that of meta.
CREATE TABLE leases_anew (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    stamp INTEGER NOT NULL,
    since INTEGER NOT NULL,
    seal  BLOB    NOT NULL
) STRICT;
