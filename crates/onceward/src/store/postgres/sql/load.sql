-- Records with what lies beside them and marks, in one statement and so of one snapshot: closes the
-- race of a reader that takes the record before and the outcome after someone's commit.
SELECT * FROM load($1, $2, $3, $4, $5, $6)
