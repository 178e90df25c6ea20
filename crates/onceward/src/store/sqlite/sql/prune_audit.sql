-- Entries that retention has let go of. Numbers are not used again (meta.audit).
DELETE FROM audit WHERE tenant = ?1 AND at <= ?2 AND id <= ?3
