//! One cache file, key by key as the reference implementation writes it.
//!
//! Invariant: the configuration in an entry is complete, so that DEL needs nothing else.
//! Failure: a file of another kind, or with names that no attachment can have, is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use super::{CacheError, CachedAttachment, MAX_FILE};
use crate::text::is_name;
use crate::{Attachment, AttachmentId, ConfigError, NetworkConfig};

const KIND: &str = "cniCacheV1";

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    kind: String,
    container_id: String,
    #[serde(serialize_with = "encode", deserialize_with = "decode")]
    config: Vec<u8>,
    if_name: String,
    pub(crate) network_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    netns: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capability_args: Option<BTreeMap<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Value>,
}

impl Entry {
    /// An attachment whose ADD is about to begin.
    pub(crate) fn pending(network: &NetworkConfig, attachment: &Attachment) -> Self {
        let some = |empty: bool| (!empty).then_some(());
        Self {
            kind: KIND.into(),
            container_id: attachment.container_id.clone(),
            config: network.to_bytes(),
            if_name: attachment.ifname.clone(),
            network_name: network.name().into(),
            netns: attachment.netns.to_string_lossy().into_owned(),
            cni_args: some(attachment.args.is_empty()).map(|()| attachment.args.clone()),
            capability_args: some(attachment.capabilities.is_empty())
                .map(|()| attachment.capabilities.clone()),
            result: None,
        }
    }

    /// The same attachment after its ADD has ended.
    pub(crate) fn completed(&self, result: Value) -> Self {
        Self {
            result: Some(result),
            ..self.clone()
        }
    }

    pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Self, CacheError> {
        let format = |reason, source| CacheError::Format {
            path: path.into(),
            reason,
            source,
        };
        if bytes.len() as u64 > MAX_FILE {
            return Err(format("it is too large", None));
        }
        let entry: Self = serde_json::from_slice(bytes)
            .map_err(|error| format("it does not parse", Some(error)))?;
        if entry.kind != KIND {
            return Err(format("it is of another kind", None));
        }
        if !is_name(&entry.network_name) || entry.id().validate().is_err() {
            return Err(format("its names are not valid", None));
        }
        Ok(entry)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Strings, lists and maps with string keys: there is nothing that could fail to serialise.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn id(&self) -> AttachmentId {
        AttachmentId {
            container_id: self.container_id.clone(),
            ifname: self.if_name.clone(),
        }
    }

    /// The configuration that the attachment was made with.
    pub(crate) fn network(&self) -> Result<NetworkConfig, ConfigError> {
        NetworkConfig::parse(&self.config)
    }

    /// The attachment as it was requested.
    pub(crate) fn attachment(&self) -> Attachment {
        Attachment {
            container_id: self.container_id.clone(),
            netns: PathBuf::from(&self.netns),
            ifname: self.if_name.clone(),
            args: self.cni_args.clone().unwrap_or_default(),
            capabilities: self.capability_args.clone().unwrap_or_default(),
        }
    }

    pub(crate) fn summary(&self) -> CachedAttachment {
        CachedAttachment {
            network: self.network_name.clone(),
            id: self.id(),
            netns: Some(self.netns.as_str())
                .filter(|p| !p.is_empty())
                .map(Into::into),
            complete: self.result.is_some(),
        }
    }
}

fn encode<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn decode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    STANDARD
        .decode(String::deserialize(deserializer)?)
        .map_err(de::Error::custom)
}
