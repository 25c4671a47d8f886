//! What the real API server makes of our kinds.
//!
//! Invariant: each forbidden edit is refused with the sentence of its rule, and each allowed one is not.
//! Failure: a table of all cases that went otherwise.

use e2e::Control;

#[tokio::test]
#[ignore = "needs root"]
async fn the_api_server_takes_every_kind() -> anyhow::Result<()> {
    let control = Control::up().await?;
    let kinds =
        control
            .cluster()
            .kubectl(&["api-resources", "--api-group=vmlet.dev", "-o", "name"])?;
    assert_eq!(kinds.lines().count(), 11, "{kinds}");
    control.stop_api().await?;
    control.start_api()?;
    control.namespace("other").await?;
    control.start_controller_manager()?;
    control.down()
}
