//! Deficit round robin that skips whole rounds.
//!
//! A GSO segment costs its flow many quanta: 45 for 64 KiB at a quantum of one Ethernet frame. Most
//! visits therefore only add a quantum. After a round without service, the scheduler computes from the
//! deficits how many further rounds serve no flow. It adds all quanta of these rounds in one step. The
//! order of service is that of single visits.

use super::queue::NONE;

/// Largest number of rounds to skip in one step, chosen so that the sum of quanta does not overflow.
const MOST_SKIPPED: i64 = u32::MAX as i64 >> 1;

/// The position of a member in a [`Ring`], and its credit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    next: u32,
    quantum: u32,
    /// Credit; inside a ring, it excludes the quanta of the skipped rounds.
    credit: i64,
}

impl Turn {
    pub(super) const fn new(quantum: u32) -> Self {
        Self { next: NONE, quantum, credit: 0 }
    }

    pub(super) fn set_credit(&mut self, credit: i64) {
        self.credit = credit;
    }

    pub(super) fn credit(&self) -> i64 {
        self.credit
    }

    pub(super) fn refill(&mut self) {
        self.credit += i64::from(self.quantum);
    }

    pub(super) fn charge(&mut self, cost: u32) {
        self.credit -= i64::from(cost);
    }

    pub(super) fn quantum(&self) -> i64 {
        i64::from(self.quantum)
    }
}

/// A member of a [`Ring`]. The member stores its turn.
pub(super) trait RingMember {
    fn turn(&self) -> &Turn;
    fn turn_mut(&mut self) -> &mut Turn;
}

macro_rules! ring_member {
    ($member:ty) => {
        impl $crate::qdisc::rounds::RingMember for $member {
            fn turn(&self) -> &Turn {
                &self.turn
            }

            fn turn_mut(&mut self) -> &mut Turn {
                &mut self.turn
            }
        }
    };
}
pub(super) use ring_member;

/// A circular list whose members are visited in order. The owner of the ring stores the members in a
/// slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// The last member, whose successor is the front.
    tail: u32,
    length: u32,
    /// Rounds skipped since the start. The credit of a member in the ring is its stored credit plus
    /// this many quanta.
    skipped: i64,
}

impl Ring {
    pub(super) const EMPTY: Self = Self { tail: NONE, length: 0, skipped: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.tail == NONE
    }

    /// Appends a member that is in no ring.
    pub(super) fn push<T: RingMember>(&mut self, members: &mut [T], index: u32) {
        let front = match members.get_mut(self.tail as usize) {
            Some(tail) => std::mem::replace(&mut tail.turn_mut().next, index),
            None => index,
        };
        let turn = members[index as usize].turn_mut();
        turn.next = front;
        turn.credit -= self.skipped * turn.quantum();
        self.tail = index;
        self.length += 1;
    }

    pub(super) fn front<T: RingMember>(&self, members: &[T]) -> Option<u32> {
        Some(members.get(self.tail as usize)?.turn().next)
    }

    pub(super) fn pop<T: RingMember>(&mut self, members: &mut [T]) -> Option<u32> {
        let front = self.front(members)?;
        let turn = members[front as usize].turn_mut();
        turn.credit += self.skipped * turn.quantum();
        let next = std::mem::replace(&mut turn.next, NONE);
        if front == self.tail {
            self.tail = NONE;
        } else {
            members[self.tail as usize].turn_mut().next = next;
        }
        self.length -= 1;
        Some(front)
    }

    pub(super) fn credit<T: RingMember>(&self, member: &T) -> i64 {
        let turn = member.turn();
        turn.credit + self.skipped * turn.quantum()
    }

    /// Rotates until the front member has at least the credit that `needed` returns for it. Returns
    /// that member; `None` if the ring is empty. Each member that is passed gets a quantum.
    pub(super) fn advance<T: RingMember>(
        &mut self,
        members: &mut [T],
        needed: impl Fn(&T) -> i64,
    ) -> Option<u32> {
        let mut front = self.front(members)?;
        let mut visits = 0;
        let mut fewest = MOST_SKIPPED;
        loop {
            let member = &mut members[front as usize];
            let missing = needed(member) - self.credit(member);
            if missing <= 0 {
                return Some(front);
            }
            let turn = member.turn_mut();
            let quantum = turn.quantum().max(1);
            // Divide only for a member that needs fewer rounds than all members before it.
            if missing - 1 < fewest * quantum {
                fewest = if missing <= quantum { 0 } else { (missing - 1) / quantum };
            }
            turn.refill();
            self.tail = front;
            front = turn.next;
            visits += 1;
            if visits == self.length {
                self.skipped += fewest;
                visits = 0;
                fewest = MOST_SKIPPED;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    struct Member {
        turn: Turn,
        need: i64,
    }

    ring_member!(Member);

    #[test]
    fn skips_to_the_first_flow_without_deficit() {
        let mut members: Vec<Member> = (0..3).map(|_| Member { turn: Turn::new(100), need: 1 }).collect();
        let mut ring = Ring::EMPTY;
        for (index, credit) in [(0, -4450), (1, -1200), (2, -1299)] {
            members[index as usize].turn.set_credit(credit);
            ring.push(&mut members, index);
        }
        // Members 1 and 2 both need 13 rounds (-1200 + 13 * 100 = 100, -1299 + 1300 = 1). Member 1 is
        // ahead.
        assert_eq!(ring.advance(&mut members, |member| member.need), Some(1));
        assert_eq!(ring.credit(&members[1]), 100);
        // Member 0 has been visited once more than the members behind it.
        assert_eq!(ring.credit(&members[0]), -4450 + 14 * 100);
        assert_eq!(ring.pop(&mut members), Some(1));
        assert_eq!(members[1].turn.credit(), 100);
        assert_eq!(ring.advance(&mut members, |member| member.need), Some(2));
    }

    proptest! {
        #[test]
        fn skipping_changes_nothing(
            start in prop::collection::vec((1u32..300, -5000i64..300, 1i64..3000), 1..9),
            costs in prop::collection::vec((1u32..7000, 0u8..8), 1..60),
        ) {
            let mut members: Vec<Member> = Vec::new();
            let mut credits: Vec<i64> = Vec::new();
            let mut order: VecDeque<usize> = VecDeque::new();
            let mut ring = Ring::EMPTY;
            for (index, (quantum, credit, need)) in start.iter().enumerate() {
                let mut turn = Turn::new(*quantum);
                turn.set_credit(*credit);
                members.push(Member { turn, need: *need });
                credits.push(*credit);
                order.push_back(index);
            }
            for index in 0..members.len() {
                ring.push(&mut members, index as u32);
            }
            for (cost, action) in costs {
                let expected = loop {
                    let Some(&front) = order.front() else { break None };
                    if credits[front] >= start[front].2 {
                        break Some(front as u32);
                    }
                    credits[front] += i64::from(start[front].0);
                    order.rotate_left(1);
                };
                prop_assert_eq!(ring.advance(&mut members, |member| member.need), expected);
                let Some(front) = expected else { break };
                let front = front as usize;
                prop_assert_eq!(ring.credit(&members[front]), credits[front]);
                members[front].turn.charge(cost);
                credits[front] -= i64::from(cost);
                if action == 0 {
                    prop_assert_eq!(ring.pop(&mut members), order.pop_front().map(|front| front as u32));
                    prop_assert_eq!(members[front].turn.credit(), credits[front]);
                }
            }
        }
    }
}
