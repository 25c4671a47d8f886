//! What `status.prePull` says where no node has failed.
//!
//! Invariant: each sentence says what keeps nodes from pulling the image.
//! Failure: none.

/// The nodes of the selector do not exist.
pub(super) const NO_NODE: &str = "no node has the labels of spec.prePull.nodeSelector";
/// None of them can pull it.
pub(super) const NONE_ABLE: &str = "no node of spec.prePull.nodeSelector is schedulable and has an available vmlet-agent whose \
                                    daemon pulls images on request";
/// Further nodes would pull it again and again, since no place would record that they did.
pub(super) const FULL: &str =
    "status.prePull.nodes is full: no more nodes pull the image; use a nodeSelector";
/// The server has another version than the one that machines use.
pub(super) const FORMER: &str = "the web server does not have the version that machines use any more: nodes without it cannot \
                      pull it";
/// The API server refuses such an image.
pub(super) const UNSUPPORTED: &str =
    "nodes cannot pull an image from this source without credentials";
