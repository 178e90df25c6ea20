-- The names of all marks behind the place (?1, ?2), in their order.
SELECT tenant, name FROM marks WHERE (tenant, name) > (?1, ?2) ORDER BY tenant, name
