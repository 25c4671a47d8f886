//! The manifests of all kinds as text.
//!
//! Invariant: the same types give the same bytes.
//! Failure: none that the types could cause.

use std::collections::BTreeMap;

/// First line of every file.
const HEADER: &str = "# Written by `cargo xtask crds` from libs/crds; edit the types there.\n";

/// The files of `deploy/crds`, by name.
pub(crate) fn files() -> Result<BTreeMap<String, String>, serde_saphyr::ser::Error> {
    let mut files = BTreeMap::new();
    let mut kustomization = format!(
        "{HEADER}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
    );
    for definition in crds::schema::definitions() {
        let name = format!("{}.yaml", definition.spec.names.plural);
        kustomization += &format!("  - {name}\n");
        let text = serde_saphyr::to_string(&definition)?;
        files.insert(name, format!("{HEADER}{}\n", text.trim_end()));
    }
    files.insert("kustomization.yaml".to_owned(), kustomization);
    Ok(files)
}
