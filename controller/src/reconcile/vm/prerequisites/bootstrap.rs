//! The sources of first-boot data.
//!
//! Invariant: a Secret's content is checked here for the presence of a key only; it is neither
//! kept nor logged. Inline data are read as the node reads them.
//! Failure: a Secret or key that is missing; inline data that the node would refuse.

use std::collections::BTreeMap;

use crds::names;
use crds::vm::{CloudInit, SecretKeyRef};
use k8s_openapi::api::core::v1::Secret;
use podspec::GuestData;

use super::{Missing, Pass};

/// Key of user data when the machine does not name one.
pub(crate) const DEFAULT_KEY: &str = "user-data";
/// Key of the network configuration when the machine does not name one.
pub(crate) const NETWORK_KEY: &str = "network-config";

const INLINE_USER_DATA: &str = "cloud-init-user-data-script";
const INLINE_NETWORK_DATA: &str = "cloud-init-network-config";

pub(super) async fn check(pass: &Pass<'_>) -> Result<(), Missing> {
    let cloud_init = pass.vm.spec.bootstrap.as_ref();
    let Some(cloud_init) = cloud_init.and_then(|b| b.cloud_init.as_ref()) else {
        return Ok(());
    };
    check_inline(cloud_init)?;
    for (source, default) in [
        (&cloud_init.user_data, DEFAULT_KEY),
        (&cloud_init.network_data, NETWORK_KEY),
    ] {
        if let Some(source) = source {
            check_secret(pass, source, default).await?;
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
        let field = match name.ends_with(INLINE_USER_DATA) {
            true => "inlineUserData",
            false => "inlineNetworkData",
        };
        // The value may have passwords: the reason names a place only.
        if let Err(error) = GuestData::from_pod(&[(name, text)].into()) {
            return invalid(format!("{field}: {}", error.reason));
        }
    }
    Ok(())
}

async fn check_secret(
    pass: &Pass<'_>,
    source: &SecretKeyRef,
    default: &str,
) -> Result<(), Missing> {
    let name = &source.name;
    let found = pass.api::<Secret>().get_opt(name).await;
    let found = found.map_err(|e| Missing::read(&format!("secret {name}"), &e))?;
    let Some(secret) = found else {
        return Err(Missing::new(
            "NotFound",
            format!("secret {name} does not exist"),
        ));
    };
    let key = source.key.as_deref().unwrap_or(default);
    let has_key = secret.data.is_some_and(|d| d.contains_key(key))
        || secret.string_data.is_some_and(|d| d.contains_key(key));
    if has_key {
        Ok(())
    } else {
        let message = format!("secret {name} has no key {key}");
        Err(Missing::new("RequiredKeyNotFound", message))
    }
}
