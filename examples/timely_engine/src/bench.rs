//! Stub.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArgs {}
pub(crate) fn run(_: &BenchArgs) -> anyhow::Result<()> {
    Ok(())
}
