//! Routes that no request ever reaches, because one before them takes all that they match.

use std::collections::{HashMap, HashSet};

/// What [`onceward::http::Route::shape`] has in the place of a parameter.
const ANY: &str = "{}";

/// The routes before the one that is looked at.
#[derive(Default)]
pub(super) struct Before {
    /// How messages name the first of each shape.
    by_shape: HashMap<String, String>,
    /// Which segments are parameters, of all shapes there are: few, however many routes.
    masks: HashSet<Vec<bool>>,
}

impl Before {
    /// Why a route of this shape is never reached, if it is not; it stands before the next ones.
    pub(super) fn unreached(&mut self, shape: &str, told: &str) -> Option<String> {
        let segments: Vec<&str> = shape.split('/').collect();
        let why = match self.by_shape.get(shape) {
            Some(first) if first == told => {
                Some(format!("{told} is there twice; the first one counts"))
            }
            Some(first) => Some(format!(
                "{told} matches what {first} does and is never reached; leave one of them out"
            )),
            None => self.wider(&segments).map(|first| {
                format!(
                    "{told} is never reached: {first} stands before it and matches all that it \
                     does; write it before that one"
                )
            }),
        };
        self.masks.insert(segments.iter().map(|segment| *segment == ANY).collect());
        self.by_shape.entry(shape.into()).or_insert_with(|| told.into());
        why
    }

    /// A route that matches the same where this one has a text and it has a parameter.
    fn wider(&self, segments: &[&str]) -> Option<&str> {
        self.masks.iter().filter(|mask| mask.len() == segments.len()).find_map(|mask| {
            let read = |(segment, is_any): (&&str, &bool)| match (*segment, is_any) {
                (ANY, false) | ("", true) => None,
                (_, true) => Some(ANY.to_string()),
                (text, false) => Some(text.to_string()),
            };
            let shape: Option<Vec<String>> = segments.iter().zip(mask).map(read).collect();
            self.by_shape.get(&shape?.join("/")).map(String::as_str)
        })
    }
}
