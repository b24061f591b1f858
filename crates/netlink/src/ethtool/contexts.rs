//! RSS contexts: indirection tables besides the device's own, for the rules that name them
//! (`struct ethtool_rxfh`, `rss_context`; Documentation/networking/scaling.rst).

use super::{
    EthtoolCalls, EthtoolError, GRSSH, RXFH_CONTEXT, RXFH_LENGTH, ReceiveRules, SRSSH, put, request,
    table_request, word,
};

/// `ETH_RXFH_CONTEXT_ALLOC`: make one, and give its number.
const NEW: u32 = u32::MAX;

impl<C: EthtoolCalls> ReceiveRules<C> {
    /// Whether the driver has RSS contexts at all.
    ///
    /// # Errors
    /// When it refuses otherwise than for that.
    pub fn has_contexts(&self) -> Result<bool, EthtoolError> {
        // One that nobody has: a driver with contexts says that there is none, one without that it has none.
        const UNLIKELY: u32 = 0x7fff_0001;
        let mut data = request(GRSSH, RXFH_LENGTH);
        put(&mut data, RXFH_CONTEXT, &UNLIKELY.to_ne_bytes());
        match self.ask(&mut data, || "say whether it has RSS contexts".to_owned()) {
            Err(error) => match error.code() {
                Some(libc::ENOENT | libc::EINVAL) => Ok(true),
                Some(libc::EOPNOTSUPP) => Ok(false),
                _ => Err(error),
            },
            // It looks at no number: it has its own table only.
            Ok(()) => Ok(false),
        }
    }

    /// The indirection table of a context; none if there is no context of this number.
    ///
    /// # Errors
    /// When the driver refuses otherwise.
    pub fn context(&self, context: u32) -> Result<Option<Vec<u32>>, EthtoolError> {
        match self.rss_of(context) {
            Err(error) if matches!(error.code(), Some(libc::ENOENT | libc::EINVAL)) => Ok(None),
            found => found.map(|found| Some(found.indirection)),
        }
    }

    /// Makes a context with this indirection table, and the device's key and function; its number, which the kernel
    /// or the driver picks: the lowest that is free.
    ///
    /// # Errors
    /// When the driver has no further one, or refuses the table.
    pub fn create_context(&self, indirection: &[u32]) -> Result<u32, EthtoolError> {
        let mut data = table_request(NEW, indirection);
        self.ask(&mut data, || "make an RSS context".to_owned())?;
        match word(&data, RXFH_CONTEXT) {
            NEW | 0 => Err(self.strange("nothing of the RSS context that it was to make".to_owned())),
            context => Ok(context),
        }
    }

    /// Gives a context another indirection table.
    ///
    /// # Errors
    /// When the driver refuses: there is no such context, the length, or a queue.
    pub fn set_context(&self, context: u32, indirection: &[u32]) -> Result<(), EthtoolError> {
        let mut data = table_request(context, indirection);
        self.ask(&mut data, || format!("take a table for RSS context {context}"))
    }

    /// Takes a context out.
    ///
    /// # Errors
    /// When the driver refuses: rules name it.
    pub fn delete_context(&self, context: u32) -> Result<(), EthtoolError> {
        // No table at all, of a context that is not the device's own, takes it out.
        let mut data = request(SRSSH, RXFH_LENGTH);
        put(&mut data, RXFH_CONTEXT, &context.to_ne_bytes());
        self.ask(&mut data, || format!("take out RSS context {context}"))
    }
}
