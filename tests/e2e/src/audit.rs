//! The writers of objects, from the API server's audit log.
//!
//! Invariant: every write that was answered is in it, refused ones too, in the order of their ends.
//! Failure: a log that cannot be read or parsed is an error.

use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::stack::Stack;

/// A write.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    user: User,
    #[serde(default)]
    impersonated_user: Option<User>,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: Status,
}

#[derive(Debug, Clone, Deserialize)]
struct User {
    username: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
}

impl Write {
    /// Who wrote: `admin`, or `system:serviceaccount:vmlet-system:vmlet-controller`.
    pub fn user(&self) -> &str {
        &self.user.username
    }

    /// Whom the writer acted as, if not as himself.
    pub fn acts_as(&self) -> Option<&str> {
        self.impersonated_user
            .as_ref()
            .map(|user| user.username.as_str())
    }

    /// The resource, with the subresource behind a slash: `virtualmachines/status`.
    pub fn resource(&self) -> String {
        let ObjectRef {
            resource,
            subresource,
            ..
        } = &self.object_ref;
        if subresource.is_empty() {
            resource.clone()
        } else {
            format!("{resource}/{subresource}")
        }
    }

    /// The object; for a `create` the log does not name it.
    pub fn name(&self) -> &str {
        &self.object_ref.name
    }

    /// Its namespace; empty for objects of the cluster.
    pub fn namespace(&self) -> &str {
        &self.object_ref.namespace
    }

    /// The answer's HTTP status.
    pub fn code(&self) -> u16 {
        self.response_status.code
    }
}

impl std::fmt::Display for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user();
        let name = self.name();
        let verb = &self.verb;
        let code = self.code();
        write!(f, "{user}: {verb} {} {name} ({code})", self.resource())
    }
}

impl Stack {
    /// Every write so far, less leases and events, which come by themselves.
    pub fn writes(&self) -> Result<Vec<Write>> {
        let path = self.dir().join("log/audit.log");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let parse = |line| serde_json::from_str::<Write>(line).context("parse the audit log");
        // The last line may be half there.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut writes = whole.lines().map(parse).collect::<Result<Vec<_>>>()?;
        writes.retain(|write| {
            let resource = write.object_ref.resource.as_str();
            !["leases", "events"].contains(&resource)
        });
        Ok(writes)
    }

    /// The writes of our programs in a namespace since the first `skip` writes: what a budget of
    /// writes is about.
    pub fn writes_of_ours(&self, namespace: &str, skip: usize) -> Result<Vec<Write>> {
        let mut writes = self.writes()?.split_off(skip);
        writes.retain(|write| {
            let ours = "system:serviceaccount:vmlet-system:";
            write.namespace() == namespace && write.user().starts_with(ours)
        });
        Ok(writes)
    }
}
