-- Before migrations too: in every version these have had these names.
SELECT stamp, audit, now FROM meta WHERE id = 1
