//! What the beginning of a packed file shows of the disk in it.
//!
//! Invariant: the bytes of strangers are decoded in a process of its own, and what it returns is bounded.
//! Failure: a beginning that shows nothing is no error; a decoder that cannot run is.

use std::io::{self, Read};

use super::apart::{Program, is_failure};
use super::decoder::{self, Work};
use super::{Shape, layer, open};
use crate::images::format::HEAD;

/// Bytes of a disk that the beginning of a packed file is unpacked to at most.
pub(super) const BEGINNING: u64 = 1 << 20;

/// What the beginning of a packed file shows of the disk in it.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::images) struct Beginning {
    /// The first bytes of the disk, as far as they are there.
    pub(in crate::images) head: Vec<u8>,
    /// Its size, where that is known.
    pub(in crate::images) length: Option<u64>,
}

impl Beginning {
    /// Whether the disk can be judged by it.
    pub(in crate::images) fn is_enough(&self) -> bool {
        let shown = self.head.len() as u64;
        shown >= HEAD || self.length == Some(shown)
    }
}

/// The first bytes of the disk in the beginning of a packed file. `None` where it shows none. Blocks;
/// on a thread of a runtime.
pub(in crate::images) fn head_in(beginning: &[u8], shape: Shape) -> io::Result<Option<Beginning>> {
    if cfg!(test) {
        return Ok(head_here(beginning, shape));
    }
    let work = match shape {
        Shape::Disk => Work::DiskHead,
        Shape::Layer => Work::LayerHead,
    };
    let answer = Program::own()?.answer(work, beginning.to_vec(), BEGINNING);
    // One that makes a decoder crash shows nothing.
    answer.or_else(|error| {
        if is_failure(&error) {
            Err(error)
        } else {
            Ok(None)
        }
    })
}

/// The first bytes of a compressed cluster of qcow2; `None` where there are none. As [`head_in`].
pub(in crate::images) fn cluster_in(packed: &[u8], is_zstd: bool) -> Option<Vec<u8>> {
    if cfg!(test) {
        return decoder::cluster_here(packed, is_zstd);
    }
    let work = if is_zstd { Work::Zstd } else { Work::Deflate };
    let answer =
        Program::own().and_then(|program| program.answer(work, packed.to_vec(), decoder::CLUSTER));
    answer.ok()?.map(|beginning| beginning.head)
}

/// The same by this process: for checks of the decoders.
pub(in crate::images) fn head_here(beginning: &[u8], shape: Shape) -> Option<Beginning> {
    match shape {
        Shape::Disk => {
            let mut head = Vec::new();
            // What is missing behind the beginning is an error here.
            let _ = open(beginning)
                .ok()?
                .reader
                .take(BEGINNING)
                .read_to_end(&mut head);
            let length = None;
            (!head.is_empty()).then_some(Beginning { head, length })
        }
        Shape::Layer => layer::head(beginning),
    }
}
