-- Whether a key may have changed since it was seen busy, as the fourth migration says it. There a
-- key that was not running had changed, also one that waits for its own time: whoever waited for a
-- failed key or a job of tomorrow was told to look again at once, as often as it looked. That time
-- needs no bell: who waits knows it.
CREATE OR REPLACE FUNCTION wanted_state(
    whose text, of_kind smallint, of_name text, of_lock bigint
) RETURNS smallint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    busy boolean;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(of_lock) THEN
        RETURN 2;
    END IF;
    PERFORM set_config('onceward.tenant', whose, true);
    busy := EXISTS (
        SELECT FROM records AS r
        WHERE r.tenant = whose AND r.kind = of_kind AND r.name = of_name
            AND (r.state = 1 OR (r.state IN (0, 3) AND r.due_at > store_now_ms()))
    );
    PERFORM set_config('onceward.tenant', '', true);
    RETURN busy::integer::smallint;
END
$$;
