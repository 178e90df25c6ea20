//! What happens at the named points of this process: nothing, until a test's child says otherwise.

use std::sync::OnceLock;

pub use crate::points::Point;

type Action = Box<dyn Fn(Point) + Send + Sync>;

static ACTION: OnceLock<Action> = OnceLock::new();

/// Has every point of this process call `action`, from now on and for good. False: one was set
/// before.
pub fn on_point(action: impl Fn(Point) + Send + Sync + 'static) -> bool {
    ACTION.set(Box::new(action)).is_ok()
}

/// The process is at a point.
pub fn reached(point: Point) {
    if let Some(action) = ACTION.get() {
        action(point);
    }
}
