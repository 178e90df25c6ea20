-- The highest priority below ?2 that a queue has jobs of: one step down the index.
SELECT max(priority) FROM records WHERE queue = ?1 AND priority < ?2
