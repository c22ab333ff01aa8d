package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func at(seconds int) time.Time { return time.Unix(int64(seconds), 0) }

func question() Question {
	return Question{Client: "pod", Protocol: "udp", To: netip.MustParseAddrPort("10.96.0.1:53")}
}

func expect(b *Book, e Expectation, now int) {
	b.Expect(map[Question]Expectation{question(): e}, at(now))
}

func served(pods ...string) Expectation {
	return Expectation{Fate: Served, Pods: pods, Known: pods, Serving: pods}
}

func by(pod string) Answer { return Answer{Kind: Answered, Pod: pod} }

// TestJudge: what a client may see before, during and after a change from pod a to pod b,
// which is asked for at 10 s, in the kernel at 20 s and followed by flows at 30 s.
func TestJudge(t *testing.T) {
	b := NewBook()
	expect(b, served("a"), 0)
	b.Settled(at(1))
	b.FlowsSettled(at(2), time.Hour)
	expect(b, served("b"), 10)
	b.Settled(at(20))
	b.FlowsSettled(at(30), time.Hour)

	refused, silent := Answer{Kind: Rejected}, Answer{Kind: Silent}
	open := func(pod, was string) Answer {
		return Answer{Kind: Answered, Pod: pod, Open: true, Was: was}
	}
	for _, test := range []struct {
		name     string
		answer   Answer
		from, to int
		right    bool
	}{
		{"before", by("a"), 3, 4, true},
		{"too early", by("b"), 3, 4, false},
		{"the change came in between", by("b"), 3, 10, true},
		{"during the change, as before", by("a"), 12, 13, true},
		{"during the change, as after", by("b"), 12, 13, true},
		{"asked before the kernel had it", by("a"), 19, 40, true},
		{"too late", by("a"), 21, 22, false},
		{"after", by("b"), 21, 22, true},
		{"a third pod", by("c"), 12, 13, false},
		{"refused", refused, 12, 13, false},
		{"no answer", silent, 12, 50, false},
		{"an open flow may be later", open("a", "a"), 25, 26, true},
		{"but not as late as that", open("a", "a"), 31, 32, false},
		{"an open flow follows", open("b", "a"), 25, 26, true},
		{"an open flow is moved before the change", open("b", "a"), 3, 4, false},
	} {
		v := b.Judge(question(), test.answer, at(test.from), at(test.to))
		if (v.Wrong == "") != test.right || v.Excuse != "" {
			t.Errorf("%s: %+v", test.name, v)
		}
	}
	if v := b.Judge(question(), by("b"), at(40), at(41)); v.Moving {
		t.Error("moving long after the change")
	}
	if v := b.Judge(question(), by("b"), at(9), at(11)); !v.Moving {
		t.Error("not moving during the change")
	}
}

// TestAlongside: what the proxy may make of two watches is right until the tables are
// settled, and nothing is expected because of it.
func TestAlongside(t *testing.T) {
	b := NewBook()
	expect(b, served("a"), 0)
	b.Settled(at(1))
	expect(b, served("b"), 10)
	for range 2 {
		b.Alongside(map[Question]Expectation{question(): served("c")}, at(10))
	}
	if now := b.Now(question()); now.Pods[0] != "b" {
		t.Errorf("%v is expected, want b", now.Pods)
	}
	b.Settled(at(20))
	for _, test := range []struct {
		pod   string
		when  int
		right bool
	}{{"c", 5, false}, {"c", 15, true}, {"a", 15, true}, {"b", 15, true}, {"c", 25, false}, {"b", 25, true}} {
		if v := b.Judge(question(), by(test.pod), at(test.when), at(test.when)); (v.Wrong == "") != test.right {
			t.Errorf("%s at %d s: %q", test.pod, test.when, v.Wrong)
		}
	}
}

// TestFlowWithoutReason: an open flow must stay with a pod that goes on serving, even if
// new connections go elsewhere.
func TestFlowWithoutReason(t *testing.T) {
	b := NewBook()
	e := served("b", "c")
	e.Known, e.Serving = []string{"a", "b", "c"}, []string{"a", "b", "c"} // a is terminating
	expect(b, e, 0)
	b.Settled(at(1))
	b.FlowsSettled(at(2), time.Hour)
	stays := Answer{Kind: Answered, Pod: "a", Open: true, Was: "a"}
	if v := b.Judge(question(), stays, at(3), at(4)); v.Wrong != "" {
		t.Errorf("it stays: %s", v.Wrong)
	}
	moves := Answer{Kind: Answered, Pod: "b", Open: true, Was: "a"}
	if v := b.Judge(question(), moves, at(3), at(4)); !strings.Contains(v.Wrong, "no reason") {
		t.Errorf("it moves: %+v", v)
	}
	expect(b, served("b", "c"), 5)
	if v := b.Judge(question(), moves, at(4), at(6)); v.Wrong != "" {
		t.Errorf("it moves when its pod is removed: %s", v.Wrong)
	}
}

// TestDamage excuses what is wrong while the tables are damaged, and nothing else.
func TestDamage(t *testing.T) {
	b := NewBook()
	expect(b, served("a"), 0)
	b.Settled(at(1))
	b.Damage("flush", at(10))
	if v := b.Judge(question(), by("b"), at(11), at(12)); v.Excuse != "flush" || v.Wrong != "" || !v.Damaged {
		t.Errorf("while damaged: %+v", v)
	}
	if v := b.Judge(question(), by("a"), at(11), at(12)); v.Excuse != "" || v.Wrong != "" || !v.Damaged {
		t.Errorf("right while damaged: %+v", v)
	}
	b.Settled(at(20))
	for _, test := range []struct{ from, to int }{{3, 4}, {21, 22}} {
		if v := b.Judge(question(), by("b"), at(test.from), at(test.to)); v.Wrong == "" || v.Damaged {
			t.Errorf("from %d s to %d s: %+v", test.from, test.to, v)
		}
	}
	if got := b.Excuse(at(4), at(30)); got != "flush" {
		t.Errorf("excuse %q", got)
	}
	b.Damage("tamper", at(40))
	b.NoDamage()
	if v := b.Judge(question(), by("b"), at(41), at(42)); v.Wrong == "" {
		t.Error("excused by a damage that was taken back")
	}
}

// TestDrops: while packets may be dropped, silence is excused, and an open flow that goes
// elsewhere. A new connection that is answered by the wrong pod is wrong.
func TestDrops(t *testing.T) {
	b := NewBook()
	expect(b, served("a"), 0)
	b.Settled(at(1))
	b.Drops("full", at(10))
	open := by("b")
	open.Open, open.Was = true, "a"
	for name, c := range map[string]struct {
		answer        Answer
		excuse, wrong bool
	}{
		"silence":       {Answer{Kind: Silent}, true, false},
		"the right pod": {by("a"), false, false},
		"another pod":   {by("b"), false, true},
		"an open flow":  {open, true, false},
	} {
		if v := b.Judge(question(), c.answer, at(11), at(12)); (v.Excuse != "") != c.excuse || (v.Wrong != "") != c.wrong ||
			!v.Damaged {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestRefused: what is not served may be refused or dropped; what is refused must be.
func TestRefused(t *testing.T) {
	for _, test := range []struct {
		fate  Fate
		kind  Kind
		right bool
	}{
		{Refused, Rejected, true},
		{Refused, Silent, false},
		{Refused, Answered, false},
		{Unserved, Rejected, true},
		{Unserved, Silent, true},
		{Unserved, Answered, false},
		{Unserved, Broken, false},
	} {
		b := NewBook()
		expect(b, Expectation{Fate: test.fate}, 0)
		v := b.Judge(question(), Answer{Kind: test.kind}, at(1), at(2))
		if (v.Wrong == "") != test.right {
			t.Errorf("%v, %s: %+v", test.fate, test.kind, v)
		}
	}
}

// TestSource: a server has to see the right address of the client.
func TestSource(t *testing.T) {
	b := NewBook()
	e := served("a")
	e.Source = Kept
	expect(b, e, 0)
	answer := by("a")
	answer.Source = Masqueraded
	if v := b.Judge(question(), answer, at(1), at(2)); v.Wrong == "" {
		t.Error("a wrong address of the client")
	}
	answer.Source = Kept
	if v := b.Judge(question(), answer, at(1), at(2)); v.Wrong != "" {
		t.Error(v.Wrong)
	}
}

// TestSticks: a client is remembered unless its pod went, the time ran out or the tables
// were damaged.
func TestSticks(t *testing.T) {
	b := NewBook()
	e := served("a", "b")
	e.Affinity = 100 * time.Second
	expect(b, e, 0)
	b.Settled(at(1))
	if !b.Sticks(question(), "a", at(2), at(50)) || b.Sticks(question(), "a", at(2), at(102)) ||
		b.Sticks(question(), "c", at(2), at(50)) {
		t.Error("not by the pod and the time-out")
	}
	b.Damage("flush", at(60))
	b.Settled(at(61))
	if b.Sticks(question(), "a", at(2), at(62)) || !b.Sticks(question(), "a", at(62), at(63)) {
		t.Error("not by the damage")
	}
	b.Forget("upgrade", at(63))
	b.Settled(at(64))
	if b.Sticks(question(), "a", at(62), at(64)) || b.Excuse(at(62), at(64)) != "" {
		t.Error("not by an upgrade, which excuses nothing else")
	}
	less := served("b")
	less.Affinity = e.Affinity
	expect(b, less, 70)
	b.Settled(at(71))
	expect(b, e, 72)
	b.Settled(at(73))
	if b.Sticks(question(), "a", at(65), at(74)) || !b.Sticks(question(), "b", at(65), at(74)) {
		t.Error("not by the pods in between")
	}
}

// TestMayCut: only connections to a pod that was not there all of the time may be cut, and only if the Service asks for
// it, or asks for nothing and the node does.
func TestMayCut(t *testing.T) {
	for _, test := range []struct {
		departed string
		node     bool
		want     bool
	}{{"", false, false}, {"", true, true}, {"keep", true, false}, {"cut", false, true}, {"cut", true, true}} {
		b := NewBook()
		for i, pods := range [][]string{{"a", "b"}, {"b"}} {
			e := served(pods...)
			e.Departed = test.departed
			expect(b, e, 10*i)
			b.Settled(at(10*i + 1))
		}
		if b.MayCut(question(), "b", at(5), at(15), test.node) {
			t.Errorf("%+v: a pod that is always there", test)
		}
		if got := b.MayCut(question(), "a", at(5), at(15), test.node); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
}

// TestProcessEnded: flows of a Service that went just before the process ended may stay.
// Those that the process had time for may not, nor may those of a Service that is there.
func TestProcessEnded(t *testing.T) {
	web := served("a")
	web.Service = "web"
	stays := Answer{Kind: Answered, Pod: "a", Open: true, Was: "a"}
	for _, test := range []struct {
		name    string
		next    Expectation
		inTime  bool
		excused bool
	}{
		{"in the middle", Expectation{}, false, true},
		{"later", Expectation{}, true, false},
		{"the Service is there", Expectation{Service: "web"}, false, false},
	} {
		b := NewBook()
		expect(b, web, 0)
		b.Settled(at(1))
		b.FlowsSettled(at(1), time.Hour)
		expect(b, test.next, 10)
		if test.inTime {
			b.Settled(at(11))
			b.FlowsSettled(at(11), time.Hour)
		}
		b.ProcessEnded()
		b.Settled(at(20))
		b.FlowsSettled(at(20), time.Hour)
		v := b.Judge(question(), stays, at(30), at(31))
		if (v.Excuse == Orphaned) != test.excused || (v.Wrong == "") != test.excused {
			t.Errorf("%s: %+v", test.name, v)
		}
		if v := b.Judge(question(), by("a"), at(30), at(31)); v.Wrong == "" {
			t.Errorf("%s: a new connection is excused: %+v", test.name, v)
		}
	}
}
