//! What a registry of images demands of a client, and what the client shows it: a password, or a token of
//! the registry's authorization service.
//!
//! Invariant: pure; the programs that use it make the requests, and decide which server may see which
//! credentials. Header values with credentials are sensitive, so that logs leave them out.
//! Failure: none of its own; what cannot be understood counts as absent.

mod challenge;
mod header;
mod host;
mod token;

pub use challenge::{Demand, demand};
pub use header::{Login, basic, bearer};
pub use host::{DOCKER_HUB, api_host, canonical_host, host_in};
pub use token::{TokenService, token_in};
