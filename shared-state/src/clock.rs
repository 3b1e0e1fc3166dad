//! One clock of two: the wall's for what others see, one that never runs back for what is due.

use crate::units::{Millis, UnixMillis};

/// Time that never runs back, so that a step of the wall clock neither stops nor doubles the polling.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    wall: UnixMillis,
    steady: Millis,
}

/// One instant on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// For what readers see.
    pub(crate) wall: UnixMillis,
    /// For what is due, open or measured.
    pub(crate) steady: Millis,
}

impl Clock {
    pub(crate) fn read(&mut self, wall: UnixMillis) -> Now {
        self.steady = self.steady + wall.since(self.wall);
        self.wall = wall;
        self.now()
    }

    /// The instant of the last reading.
    pub(crate) const fn now(&self) -> Now {
        Now {
            wall: self.wall,
            steady: self.steady,
        }
    }
}
