-- Tokens are appended and dropped from the front only, so the ids between both ends are all there.
SELECT (SELECT min(id) FROM tokens), (SELECT max(id) FROM tokens)
