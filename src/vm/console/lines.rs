//! Cuts console bytes into the records of a container log. Pure.
//!
//! Invariant: the texts of the records, with a newline after each full one, are the input bytes in
//! order, except that one carriage return before a newline is dropped. Records depend on the bytes,
//! not on how they arrived, unless the caller requests a flush. No text is longer than [`MAX_TEXT`]
//! and none holds a newline.
//! Failure: none; every byte sequence has records.

/// Longest text of one record in bytes, as in containerd.
pub(in crate::vm) const MAX_TEXT: usize = 16 * 1024;

/// Enough to decide about a record: a text of full length, a carriage return and a newline.
const WINDOW: usize = MAX_TEXT + 2;

/// Whether a record ends its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::vm) enum Tag {
    /// The line ends here.
    Full,
    /// The next record continues with the same line.
    Partial,
}

/// What becomes of text at the end of the input that has no newline yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::vm) enum Rest {
    /// It waits for more.
    Hold,
    /// It is shown now, as a partial line.
    Flush,
    /// Nothing follows: it is the last line.
    End,
}

/// One line of the log, without its timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::vm) struct Record<'a> {
    pub(in crate::vm) tag: Tag,
    pub(in crate::vm) text: &'a [u8],
}

/// Iterator over the records in some bytes.
#[derive(Debug)]
pub(in crate::vm) struct Lines<'a> {
    pending: &'a [u8],
    line_open: bool,
    rest: Rest,
}

impl<'a> Lines<'a> {
    /// `line_open`: the record before these bytes was partial.
    pub(in crate::vm) const fn new(bytes: &'a [u8], line_open: bool, rest: Rest) -> Self {
        Self {
            pending: bytes,
            line_open,
            rest,
        }
    }

    /// Bytes in no record so far.
    pub(in crate::vm) const fn pending(&self) -> &'a [u8] {
        self.pending
    }

    /// Whether the last record was partial.
    pub(in crate::vm) const fn line_open(&self) -> bool {
        self.line_open
    }

    /// Whether a flush would show something now.
    pub(in crate::vm) fn holds_text(&self) -> bool {
        !without_return(self.pending).is_empty()
    }

    fn take(&mut self, tag: Tag, text: usize, skip: usize) -> Record<'a> {
        let (text, rest) = self.pending.split_at(text);
        self.pending = &rest[skip..];
        self.line_open = tag == Tag::Partial;
        Record { tag, text }
    }

    fn tail(&mut self) -> Option<Record<'a>> {
        match self.rest {
            Rest::Hold => None,
            // A carriage return waits for the newline that would swallow it.
            Rest::Flush => match without_return(self.pending).len() {
                0 => None,
                n => Some(self.take(Tag::Partial, n, 0)),
            },
            Rest::End if self.pending.len() > MAX_TEXT => {
                Some(self.take(Tag::Partial, MAX_TEXT, 0))
            }
            Rest::End if self.pending.is_empty() && !self.line_open => None,
            Rest::End => Some(self.take(Tag::Full, self.pending.len(), 0)),
        }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let window = &self.pending[..self.pending.len().min(WINDOW)];
        if let Some(newline) = window.iter().position(|&b| b == b'\n') {
            let text = without_return(&window[..newline]).len();
            return Some(if text <= MAX_TEXT {
                self.take(Tag::Full, text, newline - text + 1)
            } else {
                self.take(Tag::Partial, MAX_TEXT, 0)
            });
        }
        // One byte too many decides, unless it is a carriage return: a newline may follow.
        if window.len() == WINDOW || without_return(window).len() > MAX_TEXT {
            return Some(self.take(Tag::Partial, MAX_TEXT, 0));
        }
        self.tail()
    }
}

fn without_return(text: &[u8]) -> &[u8] {
    text.strip_suffix(b"\r").unwrap_or(text)
}

#[cfg(test)]
mod tests;
