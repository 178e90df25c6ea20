-- Drops what retention has let go of: entries of the tenant that is set, at or before a place and not
-- younger than an instant. Beside the batch that leaves the anchor, in its transaction.
DELETE FROM audit
WHERE tenant = $1 AND (xact, id) <= ($2::text::xid8, $3) AND at <= $4
