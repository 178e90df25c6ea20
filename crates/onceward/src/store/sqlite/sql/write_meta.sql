UPDATE meta SET stamp = ?1, now = ?2, audit = ?3, indexed = ?4, names_count = ?5, names_sum = ?6,
    marks_count = ?7, marks_sum = ?8, boot = ?9, boot_ms = ?10, seal = ?11
WHERE id = 1
