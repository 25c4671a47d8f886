//! Files of translations: what changes counts for the next pull, what is broken does no harm.
//!
//! Invariant: the store reads the directory at each pull; it is never opened again here.
//! Failure: none expected.

use super::*;
use crate::metrics::Census;

/// A store whose files of translations are in `translations`.
async fn environment() -> TestEnvironment {
    let env = TestEnvironment::with(|s| {
        s.translations_dir = s.dir.with_file_name("translations");
        std::fs::create_dir(&s.translations_dir).unwrap();
    })
    .await;
    for (path, seed) in [("a.img", 1), ("b.img", 2)] {
        env.server.offer(path, &disk(4, seed), "1");
    }
    env
}

impl TestEnvironment {
    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.settings.translations_dir.join(file), text).unwrap();
    }

    /// A file with one rule.
    fn rule(&self, name: &str, path: &str) -> String {
        let url = self.server.name(path);
        format!("translations:\n- name: {name}\n  url: http://{url}\n")
    }

    /// The paths that the server was asked for.
    fn paths(&self) -> Vec<String> {
        self.server.seen().into_iter().map(|s| s.path).collect()
    }

    fn count(&self, state: &str) -> String {
        let page = self.settings.metrics.text(&Census::default());
        let start = format!("vmlet_image_translation_files{{state=\"{state}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or("no series").to_owned()
    }
}

#[tokio::test]
async fn a_change_counts_for_the_next_pull() {
    let env = environment().await;
    let refused = env.images.pull("disk").await.unwrap_err();
    assert!(matches!(refused, Error::InvalidName { .. }), "{refused}");
    env.write("10.yaml", &env.rule("disk", "a.img"));
    let first = env.images.pull("disk").await.unwrap();
    env.write("10.yaml", &env.rule("disk", "b.img"));
    let second = env.images.pull("disk").await.unwrap();
    assert_ne!(first.digest, second.digest);
    assert_eq!(env.paths(), ["/a.img", "/b.img"]);
    std::fs::remove_file(env.settings.translations_dir.join("10.yaml")).unwrap();
    assert!(env.images.pull("disk").await.is_err());
    assert_eq!(env.count("current"), "0");
}

#[tokio::test]
async fn a_broken_file_keeps_its_last_rules_and_takes_no_others_away() {
    let env = environment().await;
    env.write("10.yaml", &env.rule("disk", "a.img"));
    env.write("20.yaml", "translations:\n- nmae: x\n");
    env.write("30.yaml", &env.rule("other", "b.img"));
    env.images.pull("disk").await.unwrap();
    env.images.pull("other").await.unwrap();
    let states = ["current", "outdated", "refused"];
    assert_eq!(states.map(|s| env.count(s)), ["2", "0", "1"]);
    env.write("10.yaml", "translations: [\n");
    env.images.pull("disk").await.unwrap();
    assert_eq!(states.map(|s| env.count(s)), ["1", "1", "1"]);
    let refused = env.images.pull("unknown").await.unwrap_err().to_string();
    assert!(refused.contains("images.translations_dir"), "{refused}");
    // A repaired file counts again.
    env.write("10.yaml", &env.rule("disk", "b.img"));
    env.write("20.yaml", &env.rule("x", "a.img"));
    env.images.pull("disk").await.unwrap();
    env.images.pull("x").await.unwrap();
    assert_eq!(states.map(|s| env.count(s)), ["3", "0", "0"]);
    let expected = ["/a.img", "/b.img", "/a.img", "/b.img", "/a.img"];
    assert_eq!(env.paths(), expected);
}

#[tokio::test]
async fn files_count_in_the_order_of_their_names_after_the_settings() {
    let env = environment().await;
    env.write("20.yaml", &env.rule("disk", "b.img"));
    env.write("10.yaml", &env.rule("disk", "a.img"));
    // Hidden, as an editor or a mounted ConfigMap has it.
    env.write(".00.yaml", &env.rule("disk", "b.img"));
    std::fs::create_dir(env.settings.translations_dir.join("05")).unwrap();
    env.images.pull("disk").await.unwrap();
    assert_eq!(env.paths(), ["/a.img"]);
    let url = format!("http://{}", env.server.name("b.img"));
    let mut settings = env.settings.clone();
    settings.translations = vec![Translation {
        pattern: Pattern::Exact("disk".into()),
        url,
    }];
    settings.dir = settings.dir.with_file_name("second");
    let second = Images::open(Db::in_memory().unwrap(), settings).await;
    second.unwrap().pull("disk").await.unwrap();
    assert_eq!(env.paths(), ["/a.img", "/b.img"]);
}

#[tokio::test]
async fn links_are_followed_and_a_dangling_one_is_a_refused_file() {
    let env = environment().await;
    let dir = &env.settings.translations_dir;
    let target = dir.join(".data");
    std::fs::write(&target, env.rule("disk", "a.img")).unwrap();
    std::os::unix::fs::symlink(&target, dir.join("10.yaml")).unwrap();
    env.images.pull("disk").await.unwrap();
    std::fs::remove_file(&target).unwrap();
    env.images.pull("disk").await.unwrap();
    assert_eq!(env.count("outdated"), "1");
}

#[tokio::test]
async fn an_unreadable_directory_leaves_the_rules_that_were_read() {
    let env = environment().await;
    env.write("10.yaml", &env.rule("disk", "a.img"));
    env.images.pull("disk").await.unwrap();
    let dir = &env.settings.translations_dir;
    std::fs::remove_dir_all(dir).unwrap();
    std::fs::write(dir, "no directory").unwrap();
    env.images.pull("disk").await.unwrap();
    // A directory that is not there has no rules.
    std::fs::remove_file(dir).unwrap();
    assert!(env.images.pull("disk").await.is_err());
}

#[tokio::test]
async fn an_inspection_and_the_place_of_an_image_follow_the_files() {
    let env = environment().await;
    env.write("10.yaml", &env.rule("disk", "a.img"));
    let inspected = env.images.inspect("disk").await.unwrap();
    assert_eq!(inspected.file_bytes, 2048);
    let registry = "translations:\n- {regexp: '^r/(.*)$', url: 'oci://r.example/$1'}\n";
    env.write("20.yaml", registry);
    assert!(env.images.is_in_registry("r/a").await.unwrap());
    assert!(!env.images.is_in_registry("disk").await.unwrap());
}

/// A mapping of the cluster with one rule.
fn mapping(name: &str, rules: &str) -> ClusterMapping {
    ClusterMapping {
        name: name.to_owned(),
        rules: Some(rules.to_owned()),
    }
}

#[tokio::test]
async fn mappings_of_the_cluster_count_after_files_until_they_are_not_brought_any_more() {
    let env = environment().await;
    let set = |mappings| env.images.replace_cluster_mappings(mappings);
    let a = env.rule("disk", "a.img");
    let b = env.rule("disk", "b.img");
    let none = vec![None, None];
    assert_eq!(
        set(vec![mapping("x", &a), mapping("y", &b)]).await.unwrap(),
        none
    );
    let first = env.images.pull("disk").await.unwrap();
    assert_eq!(set(vec![mapping("y", &b)]).await.unwrap(), [None]);
    let second = env.images.pull("disk").await.unwrap();
    assert_ne!(first.digest, second.digest);
    env.write("10.yaml", &a);
    let by_file = env.images.pull("disk").await.unwrap();
    assert_eq!(by_file.digest, first.digest);

    std::fs::remove_file(env.settings.translations_dir.join("10.yaml")).unwrap();
    let env = env.reopened().await;
    let kept = env.images.pull("disk").await.unwrap();
    assert_eq!(kept.digest, second.digest, "a restart has lost the mapping");
    let set = |mappings| env.images.replace_cluster_mappings(mappings);
    assert_eq!(set(Vec::new()).await.unwrap(), []);
    assert!(env.images.pull("disk").await.is_err());
}

#[tokio::test]
async fn a_mapping_that_is_refused_or_not_known_keeps_its_rules() {
    let env = environment().await;
    let set = async |mappings| env.images.replace_cluster_mappings(mappings).await.unwrap();
    let rule = env.rule("disk", "a.img");
    assert_eq!(set(vec![mapping("x", &rule)]).await, [None]);
    let broken = "translations: [{regexp: '(', url: http://secret.example}]";
    let refused = set(vec![mapping("x", broken)]).await.remove(0).unwrap();
    assert!(
        !refused.contains("secret") && !refused.contains("line"),
        "{refused}"
    );
    env.images.pull("disk").await.unwrap();
    let unknown = ClusterMapping {
        name: "x".to_owned(),
        rules: None,
    };
    assert_eq!(set(vec![unknown]).await, [None]);
    env.images.pull("disk").await.unwrap();
    let left = env.settings.cluster_mappings_dir.join(".new-y");
    std::fs::write(&left, "half").unwrap();
    assert_eq!(set(vec![mapping("x", &rule)]).await, [None]);
    assert!(!left.exists(), "what a killed daemon has left stays");
    for name in ["../x", ".x", "", "X"] {
        let refused = set(vec![mapping(name, &rule)]).await.remove(0);
        assert!(
            refused.is_some_and(|reason| reason.contains("name")),
            "{name}"
        );
    }
    assert!(
        env.images.pull("disk").await.is_err(),
        "x is not brought any more"
    );
}

#[tokio::test]
async fn a_directory_that_does_not_answer_leaves_the_last_rules_in_use() {
    let env = environment().await;
    env.write("10.yaml", &env.rule("disk", "a.img"));
    let pulled = env.images.pull("disk").await.unwrap();
    env.write("10.yaml", &env.rule("disk", "b.img"));
    let mappings = &env.images.inner.mappings;
    let hung = mappings.hang();
    let before = mappings.latest();
    tokio::time::pause();
    let read = mappings.read_in_turn().await;
    assert!(Arc::ptr_eq(&before, &read));
    tokio::time::resume();
    drop(hung);
    let changed = env.images.pull("disk").await.unwrap();
    assert_ne!(pulled.digest, changed.digest);
}
