-- The store's instant of a look. Runs in the snapshot of the look, and closes no race: whatever is
-- decided from it is conditional on what was seen.
SELECT store_now_ms()
