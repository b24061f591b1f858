//! NICs: their models, and models that are configured.

mod configured;
mod model;
mod rss;

pub use configured::{ConfigureError, ConfiguredNic, FilterId, InsertError};
pub use model::{FieldMatch, FilterFields, FilterTable, ModelError, NicModel, Precedence};
pub use rss::{Rss, RssKey};
