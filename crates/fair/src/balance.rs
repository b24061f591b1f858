//! Service balancing on a live interface.
//!
//! Balancing changes no setting. A BPF program on received packets holds a flow back. The program is detached
//! when the session ends.

use evenkeel_apply::{Direction, Run};
use evenkeel_control::{BalanceControl, HeldMoves};
use evenkeel_datapath::{Completion, HookKind, QueueSelect};
use evenkeel_model::shell::Line;
use evenkeel_transmit::Pool;
use evenkeel_transmit::service::ServiceOptions;

use crate::device::Device;
use crate::error::FairError;
use crate::hooks;
use crate::preflight::{hook_name, undo_of_program};
use crate::queue_weights::Backend;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BalanceMode {
    #[default]
    Off,
    /// Enables balancing if the device does not serve its queues by weight and balancing is possible.
    /// Otherwise a remark gives the reason.
    Auto,
    /// Enables balancing. The session fails to start if balancing is not possible.
    On,
}

impl BalanceMode {
    pub(crate) fn plan(
        self,
        device: &Device,
        backend: Backend,
        pools: &[Pool],
        remarks: &mut Vec<String>,
    ) -> Result<bool, FairError> {
        let name = &device.name;
        let obstacle = if backend != Backend::None {
            Some((
                format!(
                    "the queues of {name} are served by weight ({}), which is fairer than balancing",
                    backend.name()
                ),
                "use --queue-weights off or --balance off",
            ))
        } else if !pools.is_empty() {
            Some((
                format!(
                    "{name} has pools of queues (--xps pools), and balancing cannot move flows between pools"
                ),
                "use --xps off or --balance off",
            ))
        } else {
            None
        };
        match (self, obstacle) {
            (Self::Off, _) => Ok(false),
            (_, None) => {
                remarks.extend(device.ingress.iter().map(|program| {
                    format!(
                        "{name} has another program at tcx ingress: {program}; that program runs first, \
                         so balancing sees only packets that it passes on (TCX_NEXT)"
                    )
                }));
                Ok(true)
            }
            (Self::Auto, Some((obstacle, _))) => {
                remarks.push(format!("no service balancing: {obstacle}"));
                Ok(false)
            }
            (Self::On, Some((obstacle, remedy))) => Err(FairError::conflict(obstacle, remedy)),
        }
    }

    /// Attaches the flow mover if it is planned, and returns its control and the id of its program.
    /// Returns `None` if it is not planned. `Auto` also returns `None`, with a remark, if the kernel does not
    /// let BPF programs read sockets.
    pub(crate) fn start(
        self,
        planned: bool,
        device: &Device,
        select: &QueueSelect,
        run: &mut Run,
    ) -> Result<Option<(BalanceControl, u32)>, FairError> {
        if !planned || self == Self::Off {
            return Ok(None);
        }
        if select.completion() != Completion::Sockets {
            run.remark(self.without_sockets(select.refused())?);
            return Ok(None);
        }
        let mover = select.attach_mover(device.index.cast_signed())?;
        let program = mover.program_id();
        if device.hook == HookKind::Clsact {
            let descriptor = (mover.program(), program);
            hooks::attach(run, device.index, Direction::Ingress, descriptor, "evenkeel hold_back")?;
        }
        let backend = Box::new(HeldMoves::new(mover));
        Ok(Some((BalanceControl { backend, options: ServiceOptions::default() }, program)))
    }

    /// Returns the remark of a session that continues although BPF programs cannot read sockets. For `On`,
    /// returns an error.
    fn without_sockets(self, refusal: Option<&str>) -> Result<String, FairError> {
        let refusal = refusal.map(|words| format!(" ({words})")).unwrap_or_default();
        let obstacle =
            format!("this kernel does not let BPF programs read sockets, which balancing needs{refusal}");
        match self {
            Self::On => Err(FairError::unable(obstacle, "use --balance off")),
            Self::Off | Self::Auto => Ok(format!("no service balancing: {obstacle}")),
        }
    }
}

pub(crate) fn plan_lines(device: &Device) -> [Line; 4] {
    let (hook, direction) = (device.hook, Direction::Ingress);
    [
        Line::comment(format_args!(
            "a BPF program at {} of {}: while a flow moves, the program lowers the windows that the flow's peer advertises,",
            hook_name(hook, direction),
            device.name
        )),
        Line::comment("  for some milliseconds, until the kernel lets the flow change its queue"),
        undo_of_program(hook, direction),
        Line::comment("  the next acknowledgement opens the window"),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use evenkeel_model::units::BitRate;

    #[test]
    fn it_is_for_devices_without_weights_and_pools() {
        let device = Device::for_tests("eth0");
        let weighted = Backend::MaxRate(BitRate::from_bits_per_second(1_000_000_000));
        let pools = [Pool { first: 0, count: 2 }, Pool { first: 2, count: 2 }];
        let mut remarks = Vec::new();
        let mut plan =
            |mode: BalanceMode, backend, pools: &[Pool]| mode.plan(&device, backend, pools, &mut remarks);
        assert!(plan(BalanceMode::On, Backend::None, &[]).unwrap());
        assert!(plan(BalanceMode::Auto, Backend::None, &[]).unwrap());
        assert!(!plan(BalanceMode::Off, Backend::None, &[]).unwrap());
        assert!(!plan(BalanceMode::Auto, weighted, &[]).unwrap());
        assert!(!plan(BalanceMode::Auto, Backend::None, &pools).unwrap());
        let error = plan(BalanceMode::On, weighted, &[]).expect_err("weights are fairer").to_string();
        assert!(error.contains("max-rate") && error.contains("--queue-weights off"), "{error}");
        let error = plan(BalanceMode::On, Backend::None, &pools).expect_err("pools hold flows").to_string();
        assert!(error.contains("--xps off"), "{error}");
        assert_eq!(remarks.len(), 2, "auto says why not: {remarks:?}");
    }

    #[test]
    fn auto_says_that_sockets_cannot_be_read_and_on_refuses() {
        let obstacle = "this kernel does not let BPF programs read sockets, which balancing needs";
        let remark = BalanceMode::Auto.without_sockets(Some("no kfunc")).unwrap();
        assert_eq!(remark, format!("no service balancing: {obstacle} (no kfunc)"));
        let error = BalanceMode::On.without_sockets(None).expect_err("balancing was demanded").to_string();
        assert!(error.contains(obstacle) && error.contains("--balance off"), "{error}");
    }
}
