//! The sources of first-boot data.
//!
//! Invariant: a Secret's content is checked here for the presence of a key only; it is neither
//! kept nor logged. Inline data are read as the node reads them.
//! Failure: a Secret or key that is missing; inline data that the node would refuse.

use std::collections::{BTreeMap, BTreeSet};

use crds::names;
use crds::vm::CloudInit;
use k8s_openapi::api::core::v1::Secret;
use podspec::{ANSWER_FILES, GuestData};

use super::{Missing, Pass};

/// Key of user data when the machine does not name one.
pub(crate) const DEFAULT_KEY: &str = "user-data";
/// Key of the network configuration when the machine does not name one.
pub(crate) const NETWORK_KEY: &str = "network-config";

/// Most keys of a Secret that a message names.
const MOST_KEYS: usize = 8;
const INLINE_USER_DATA: &str = "cloud-init-user-data-script";
const INLINE_NETWORK_DATA: &str = "cloud-init-network-config";

pub(super) async fn check(pass: &Pass<'_>) -> Result<(), Missing> {
    let bootstrap = pass.vm.spec.bootstrap.as_ref();
    if let Some(sysprep) = bootstrap.and_then(|b| b.sysprep.as_ref()) {
        return check_secret(pass, &sysprep.secret_name, &ANSWER_FILES).await;
    }
    let Some(cloud_init) = bootstrap.and_then(|b| b.cloud_init.as_ref()) else {
        return Ok(());
    };
    check_inline(cloud_init)?;
    for (source, default) in [
        (&cloud_init.user_data, DEFAULT_KEY),
        (&cloud_init.network_data, NETWORK_KEY),
    ] {
        if let Some(source) = source {
            let key = source.key.as_deref().unwrap_or(default);
            check_secret(pass, &source.name, &[key]).await?;
        }
    }
    Ok(())
}

/// The annotations of a pod that carry inline data.
pub(crate) fn inline(cloud_init: &CloudInit) -> BTreeMap<String, String> {
    let key = |key: &str| format!("{}{key}", names::PREFIX);
    let user_data = cloud_init.inline_user_data.clone();
    let network = cloud_init.inline_network_data.clone();
    let user_data = user_data.map(|text| (key(INLINE_USER_DATA), text));
    let network = network.map(|text| (key(INLINE_NETWORK_DATA), text));
    user_data.into_iter().chain(network).collect()
}

fn check_inline(cloud_init: &CloudInit) -> Result<(), Missing> {
    let invalid = |message: String| Err(Missing::new("Invalid", message));
    for (secret, text, field) in [
        (
            cloud_init.user_data.is_some(),
            &cloud_init.inline_user_data,
            "userData",
        ),
        (
            cloud_init.network_data.is_some(),
            &cloud_init.inline_network_data,
            "networkData",
        ),
    ] {
        if secret && text.is_some() {
            return invalid(format!("{field} and its inline form are both set"));
        }
    }
    for (name, text) in inline(cloud_init) {
        let field = if name.ends_with(INLINE_USER_DATA) {
            "inlineUserData"
        } else {
            "inlineNetworkData"
        };
        // The value may have passwords: the reason names a place only.
        if let Err(error) = GuestData::from_pod(&[(name, text)].into()) {
            return invalid(format!("{field}: {}", error.reason));
        }
    }
    Ok(())
}

/// A Secret needs one of the keys.
async fn check_secret(pass: &Pass<'_>, name: &str, keys: &[&str]) -> Result<(), Missing> {
    let found = pass.api::<Secret>().get_opt(name).await;
    let found = found.map_err(|e| Missing::read(&format!("secret {name}"), &e))?;
    let Some(secret) = found else {
        return Err(Missing::new(
            "NotFound",
            format!("secret {name} does not exist"),
        ));
    };
    let data = secret.data.unwrap_or_default();
    let text = secret.string_data.unwrap_or_default();
    let is_there = |key: &&str| data.contains_key(*key) || text.contains_key(*key);
    if keys.iter().any(is_there) {
        Ok(())
    } else {
        let present = present(data.into_keys().chain(text.into_keys()));
        let missing = keys.join(" and no key ");
        let message = format!("secret {name} has no key {missing}; {present}");
        Err(Missing::new("RequiredKeyNotFound", message))
    }
}

/// The keys that a Secret has: one of them may be the missing one, spelt otherwise.
fn present(keys: impl Iterator<Item = String>) -> String {
    let keys: BTreeSet<_> = keys.collect();
    let names: Vec<_> = keys.iter().take(MOST_KEYS).map(String::as_str).collect();
    let more = if keys.len() > MOST_KEYS {
        " and others"
    } else {
        ""
    };
    if names.is_empty() {
        "it has none".to_owned()
    } else {
        format!("it has {}{more}", names.join(", "))
    }
}
