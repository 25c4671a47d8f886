//! The attachment of a container to a network: namespace, link name, arguments.
//!
//! Invariant: an attachment that passed [`Attachment::validate`] can be put into environment
//! variables and file names as it is.
//! Failure: an attachment that does not is refused before anything happens.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rscni_types::types::InterfaceName;
use serde_json::Value;

use crate::text::is_name;

/// Capability: addresses to request, a list of texts. Plugins that do not declare it find them in
/// `args.cni.ips`, the other convention for the same, which host-local understands.
pub const IPS: &str = "ips";

/// One link of one container in a network.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// Id of the container (for us: the sandbox); letters, digits, `_`, `.`, `-`, at most 100.
    pub container_id: String,
    /// Path of the network namespace.
    pub netns: PathBuf,
    /// Name of the link inside the namespace, at most 15 characters.
    pub ifname: String,
    /// `CNI_ARGS`, in order; neither part may hold `;`, the key no `=`.
    pub args: Vec<(String, String)>,
    /// Values by capability (`portMappings`, `bandwidth`, …), for plugins that declare it.
    pub capabilities: BTreeMap<String, Value>,
}

/// What makes an attachment unique, whatever its network.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttachmentId {
    /// Id of the container.
    pub container_id: String,
    /// Name of the link.
    pub ifname: String,
}

/// Why an attachment cannot be requested.
#[derive(Debug, thiserror::Error)]
pub enum AttachmentError {
    /// Not a container id by the specification's rule.
    #[error("container id {0:?} is not valid")]
    ContainerId(String),
    /// Not a name that the kernel takes for a link.
    #[error("interface name {0:?} is not valid")]
    InterfaceName(String),
    /// The path is empty, relative, not UTF-8 or holds a zero byte.
    #[error("namespace path {0:?} is not valid")]
    Netns(PathBuf),
    /// The argument cannot be written into `CNI_ARGS`.
    #[error("argument {0:?} is not valid")]
    Argument(String),
}

impl Attachment {
    /// The part that identifies it.
    pub fn id(&self) -> AttachmentId {
        AttachmentId {
            container_id: self.container_id.clone(),
            ifname: self.ifname.clone(),
        }
    }

    /// Whether plugins can be called with it.
    pub fn validate(&self) -> Result<(), AttachmentError> {
        self.id().validate()?;
        let path = self.netns.to_str();
        if !self.netns.is_absolute() || path.is_none_or(|path| path.contains('\0')) {
            return Err(AttachmentError::Netns(self.netns.clone()));
        }
        let bad = |text: &str| text.contains([';', '\0', '\n']);
        match self
            .args
            .iter()
            .find(|(k, v)| k.is_empty() || k.contains('=') || bad(k) || bad(v))
        {
            Some((key, _)) => Err(AttachmentError::Argument(key.clone())),
            None => Ok(()),
        }
    }

    /// `CNI_ARGS`.
    pub(crate) fn args_variable(&self) -> String {
        let pairs: Vec<String> = self.args.iter().map(|(k, v)| format!("{k}={v}")).collect();
        pairs.join(";")
    }
}

impl AttachmentId {
    pub(crate) fn validate(&self) -> Result<(), AttachmentError> {
        if !is_name(&self.container_id) {
            return Err(AttachmentError::ContainerId(self.container_id.clone()));
        }
        let plain = self.ifname.chars().all(|c| c.is_ascii_graphic());
        if !plain || self.ifname.parse::<InterfaceName>().is_err() {
            return Err(AttachmentError::InterfaceName(self.ifname.clone()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Attachment;

    fn sound() -> Attachment {
        Attachment {
            container_id: "c0ffee".into(),
            netns: "/run/netns/x".into(),
            ifname: "eth0".into(),
            args: vec![
                ("IgnoreUnknown".into(), "1".into()),
                ("K8S_POD_NAME".into(), "a=b".into()),
            ],
            capabilities: Default::default(),
        }
    }

    #[test]
    fn arguments_are_joined_in_order() {
        assert!(sound().validate().is_ok());
        assert_eq!(sound().args_variable(), "IgnoreUnknown=1;K8S_POD_NAME=a=b");
    }

    #[test]
    fn what_would_change_the_meaning_of_a_variable_or_path_is_refused() {
        let broken: [fn(&mut Attachment); 8] = [
            |a| a.container_id = "../etc".into(),
            |a| a.container_id.clear(),
            |a| a.ifname = "sixteen-letters-".into(),
            |a| a.ifname = "a/b".into(),
            |a| a.netns = "relative".into(),
            |a| a.args[0].1 = "1;K8S_POD_NAME=other".into(),
            |a| a.args[0].0 = "A=B".into(),
            |a| a.args[0].0.clear(),
        ];
        for (number, damage) in broken.iter().enumerate() {
            let mut attachment = sound();
            damage(&mut attachment);
            assert!(attachment.validate().is_err(), "case {number}");
        }
    }
}
