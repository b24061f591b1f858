//! Tests of the scoreboard: its sums, its marks, and the detection of losses.

use super::*;

const MSS: u32 = 1000;

/// Creates a board with segments of 4 packets each. The segments are sent 1 ps apart.
fn board(segments: u64) -> Scoreboard {
    let mut board = Scoreboard::new(MSS);
    for index in 0..segments {
        board.push(Time(index + 1), index * 4000, 4000, 4);
    }
    board
}

fn sack(board: &mut Scoreboard, start: u64, end: u64) -> Progress {
    let mut progress = Progress::default();
    board.sack(Block { start, end }, &mut progress);
    progress
}

#[test]
fn cumulative_acknowledgements_pop_and_trim() {
    let mut board = board(3);
    let mut progress = Progress::default();
    board.acknowledge(6000, &mut progress);
    assert_eq!((progress.acknowledged, progress.delivered), (6, 6));
    assert_eq!((progress.first_sent, progress.last_sent), (Some(Time(1)), Some(Time(2))));
    assert_eq!(progress.newest, SentOrder { sent_at: Time(2), end: 6000 });
    assert_eq!((board.outstanding(), board.in_flight()), (6, 6));
    assert!(board.is_consistent(6000, 12_000));
    // Half a packet: no whole packet is acknowledged.
    let mut progress = Progress::default();
    board.acknowledge(6500, &mut progress);
    assert_eq!(progress.acknowledged, 0);
    assert!(board.is_consistent(6500, 12_000));
}

/// Checks acknowledgements that end at the end of a segment, at the end of a packet, and within a packet, and
/// an acknowledgement of no data.
#[test]
fn a_plain_acknowledgement_is_one_like_any() {
    for cumulative in (0..=12_000).step_by(500) {
        let (mut any, mut plain) = (board(3), board(3));
        assert!(plain.is_plain(0));
        let mut progress = Progress::default();
        any.acknowledge(cumulative, &mut progress);
        let delivery = plain.acknowledge_plain(cumulative);
        let expected = progress.first_sent.map(|first_sent| Delivery {
            packets: progress.acknowledged,
            first_sent,
            newest: progress.newest,
        });
        assert_eq!(delivery, expected, "up to {cumulative}");
        assert_eq!(progress.round_trips().1, delivery.map(|delivery| delivery.newest.sent_at));
        assert_eq!(any.outstanding(), plain.outstanding());
        assert!(plain.is_consistent(cumulative, 12_000));
    }
}

#[test]
fn what_was_marked_is_not_plain() {
    let mut board = board(3);
    sack(&mut board, 4000, 8000);
    assert!(!board.is_plain(0));
    assert!(!board.is_plain(7999));
    assert!(board.is_plain(8000));
    board.judge_all_lost(Time::NEVER);
    assert!(!board.is_plain(8000));
}

#[test]
fn sack_splits_at_packets_and_merges() {
    let mut board = board(3);
    let progress = sack(&mut board, 5000, 7000);
    assert_eq!((progress.sacked, progress.delivered, board.sacked()), (2, 2, 2));
    assert_eq!(progress.reordered_from, None);
    assert_eq!(board.in_flight(), 10);
    assert!(board.is_consistent(0, 12_000));
    // The block grows on both sides, but only by whole packets.
    let progress = sack(&mut board, 3500, 9500);
    assert_eq!(progress.sacked, 3);
    assert_eq!(progress.reordered_from, Some(4000));
    // The entries are [0, 4000) without marks, [4000, 9000) SACKed, and [9000, 12000).
    assert_eq!(board.len(), 3);
    assert!(board.is_consistent(0, 12_000));
    assert_eq!(sack(&mut board, 3500, 9500).sacked, 0);
}

#[test]
fn three_packets_above_are_a_loss() {
    let mut board = board(3);
    sack(&mut board, 4000, 6000);
    assert!(!board.judge_by_count(3));
    sack(&mut board, 9000, 10_000);
    // Only one packet is SACKed above [6000, 9000).
    assert!(board.judge_by_count(3));
    assert_eq!((board.lost(), board.due(), board.in_flight()), (4, 4, 5));
    sack(&mut board, 10_000, 12_000);
    assert!(board.judge_by_count(3));
    assert_eq!(board.lost(), 7);
    assert!(!board.judge_by_count(3));
    assert!(board.is_consistent(0, 12_000));
}

#[test]
fn retransmissions_take_what_is_due_in_order() {
    let mut board = board(3);
    sack(&mut board, 8000, 12_000);
    assert!(board.judge_by_count(3));
    assert_eq!(board.first_due(3), Some((0, 3000)));
    assert_eq!(board.retransmit(Time(10), 0), 3);
    assert_eq!((board.due(), board.in_flight()), (5, 3));
    assert_eq!(board.first_due(3), Some((3000, 1000)));
    board.retransmit(Time(11), 3000);
    board.undo_retransmission(0);
    assert_eq!(board.first_due(9), Some((0, 3000)));
    assert!(board.is_consistent(0, 12_000));
    let mut progress = Progress::default();
    board.acknowledge(4000, &mut progress);
    assert!(progress.retransmission_acknowledged);
    assert_eq!(progress.first_sent, None);
    assert_eq!(progress.newest_retransmitted, SentOrder { sent_at: Time(11), end: 4000 });
}

#[test]
fn time_tells_losses_and_doubts() {
    let mut board = board(4);
    sack(&mut board, 8000, 12_000);
    let rule = TimeRule { newest: SentOrder { sent_at: Time(3), end: 12_000 }, limit: Time(2), slack: 1 };
    // The packet sent at 1 is lost. The packet sent at 2 is undecided for 1 ps more. The packet sent at
    // 4 was sent after the delivered data.
    assert_eq!(board.judge_by_time(rule), (true, 1));
    assert_eq!(board.lost(), 4);
    assert!(board.is_consistent(0, 16_000));
    // The retransmission is lost too, because a packet that was sent after it arrives.
    board.retransmit(Time(5), 0);
    assert_eq!(board.due(), 0);
    let rule = TimeRule { newest: SentOrder { sent_at: Time(9), end: 16_000 }, limit: Time(7), slack: 1 };
    assert_eq!(board.judge_by_time(rule), (true, 0));
    assert_eq!(board.due(), 12);
    assert!(board.is_consistent(0, 16_000));
}

#[test]
fn a_timeout_spares_what_was_sent_recently() {
    let mut board = board(3);
    board.judge_all_lost(Time(2));
    assert_eq!((board.lost(), board.in_flight()), (8, 4));
    board.judge_all_lost(Time::NEVER);
    assert_eq!(board.lost(), 12);
}

#[test]
fn the_newest_segment_can_be_taken_back() {
    let mut board = board(2);
    assert!(!board.unsend(0, 4000));
    assert!(board.unsend(4000, 4000));
    assert_eq!(board.outstanding(), 4);
    assert_eq!(board.last_packet(), Some((3000, 1000)));
    assert_eq!(board.retransmit(Time(9), 3000), 1);
    assert!(!board.unsend(3000, 1000));
    assert_eq!(board.last_packet(), None);
}
