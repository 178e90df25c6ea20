//! Projections: views that are a fold of the log.
