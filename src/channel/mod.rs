//! What an engine's commands mean: their history, and going over from one incarnation to the next.

pub mod history;
pub mod reconcile;

pub use history::{Commanded, Effect, History, HistoryError};
pub use reconcile::{Action, Reconcile, Reconciled, Reconciler};
