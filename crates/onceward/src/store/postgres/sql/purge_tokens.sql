-- Forgets tokens that no resend can bring any more. Skips what another process prunes at the same
-- time, which closes the race of two that would wait for each other's rows.
DELETE FROM tokens WHERE token IN (
    SELECT token FROM tokens WHERE at < $1::bigint ORDER BY at LIMIT 1024 FOR UPDATE SKIP LOCKED
)
