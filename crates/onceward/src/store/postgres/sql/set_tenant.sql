-- For the rest of this transaction only, so that a session that serves another tenant next can't
-- find it: closes the race of a setting with the next user of its connection.
SELECT set_config('onceward.tenant', $1, true)
