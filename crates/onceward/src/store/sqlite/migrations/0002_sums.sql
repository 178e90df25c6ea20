-- What shows that a name or one of these numbers was changed behind our back: how many records there
-- are, the sum of a keyed hash of their names and numbers, the same of all marks, and a seal over the
-- whole row. The program fills sums and seal in when it applies this.
-- boot and boot_ms say when `now` was written by a clock that nobody sets: which boot of the machine
-- it was, and how long it had been up.
ALTER TABLE meta ADD COLUMN names_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN names_sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE meta ADD COLUMN marks_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN marks_sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE meta ADD COLUMN sum_key BLOB NOT NULL DEFAULT x'';
ALTER TABLE meta ADD COLUMN boot BLOB NOT NULL DEFAULT x'';
ALTER TABLE meta ADD COLUMN boot_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
UPDATE meta SET sum_key = randomblob(16);
