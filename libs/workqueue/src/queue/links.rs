//! Doubly linked lists whose links are in the slots.
//!
//! Invariant: a slot is in a list at most once; a slot that is in none has no links.
//! Failure: none; slot numbers come from the table that holds the links.

/// No slot.
pub(super) const NIL: u32 = u32::MAX;

/// A slot's neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) before: u32,
    pub(super) after: u32,
}

impl Link {
    pub(super) const NONE: Self = Self {
        before: NIL,
        after: NIL,
    };
}

/// Where the links of one list are.
pub(super) trait Links {
    fn link(&mut self, slot: u32) -> &mut Link;
}

/// First and last of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl Default for List {
    fn default() -> Self {
        Self {
            first: NIL,
            last: NIL,
        }
    }
}

impl List {
    /// The first slot.
    pub(super) fn head(&self) -> Option<u32> {
        (self.first != NIL).then_some(self.first)
    }

    /// Appends a slot that is not in the list.
    pub(super) fn push_back(&mut self, links: &mut impl Links, slot: u32) {
        *links.link(slot) = Link {
            before: self.last,
            after: NIL,
        };
        match self.last {
            NIL => self.first = slot,
            last => links.link(last).after = slot,
        }
        self.last = slot;
    }

    /// Takes a slot out; one that is not in the list is left alone.
    pub(super) fn unlink(&mut self, links: &mut impl Links, slot: u32) {
        let Link { before, after } = std::mem::replace(links.link(slot), Link::NONE);
        if before == NIL && self.first != slot {
            return;
        }
        match before {
            NIL => self.first = after,
            before => links.link(before).after = after,
        }
        match after {
            NIL => self.last = before,
            after => links.link(after).before = before,
        }
    }
}
