-- Beside the batch that leaves the anchor, in its transaction and under its tenant.
SELECT prune_audit($1::text::xid8, $2, $3)
