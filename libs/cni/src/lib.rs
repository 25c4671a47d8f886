//! The runtime side of the Container Network Interface, specification 0.3.0 to 1.1.0.
//!
//! Invariant: what could need undoing is in the cache before the first plugin runs, so a crash at
//! any instant leaves something to call DEL with; DEL uses the configuration the attachment was
//! made with.
//! Failure: every plugin call ends by its deadline, with all processes it started in its group;
//! what a plugin prints is bounded and never trusted. Errors name plugin, network and command, and
//! carry the plugin's own message in their source chain.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use cni::{Runtime, Settings};
//!
//! let runtime = Runtime::new(Settings {
//!     conf_dir: "/etc/cni/net.d".into(),
//!     bin_dirs: vec!["/opt/cni/bin".into()],
//!     cache_dir: "/var/lib/vmlet/cni".into(),
//!     timeout: Duration::from_secs(60),
//! });
//! // `runtime.add(&network, &attachment).await` calls the plugins.
//! # let _ = runtime;
//! ```

mod attachment;
mod cache;
mod config;
mod invoke;
mod result;
mod runtime;
mod text;

pub use attachment::{Attachment, AttachmentError, AttachmentId, IPS};
pub use cache::{CacheError, CachedAttachment};
pub use config::{ConfigError, NetworkConfig, Plugin, Rejected};
pub use invoke::{Failure, InvokeError, Observer};
pub use result::{AddResult, ResultError, parse_result};
pub use rscni_types::types::{CNIResult, Cmd, Dns, Interface, IpConfig, Route};
pub use rscni_types::version::SpecVersion;
pub use runtime::{Error, ErrorKind, GcOutcome, Result, Runtime, Settings};
