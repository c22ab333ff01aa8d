package flowmap

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"nftproxy/model/flows"
	"nftproxy/model/printable"
)

// Rate is PerSecond for people, such as 12/s.
func Rate(s *flows.Stats) string {
	if s.PerSecond > 0 && s.PerSecond < 0.1 {
		return Number(s.PerSecond*60) + "/min"
	}
	return Number(s.PerSecond) + "/s"
}

// Failed says how many connections fail, such as 12%; empty for none.
func Failed(s *flows.Stats) string {
	switch p := s.FailedShare() * 100; {
	case p == 0:
		return ""
	case p < 1:
		return "<1%"
	case p > 99 && p < 100:
		return ">99%"
	default:
		return strconv.FormatFloat(p, 'f', 0, 64) + "%"
	}
}

// Seconds is a time for people, with two digits that count.
func Seconds(d time.Duration) string {
	if d >= 100 { // Less has no more digits.
		unit := time.Duration(math.Pow10(int(math.Log10(float64(d))) - 1))
		d = d.Round(unit)
	}
	switch {
	case d < time.Millisecond:
		return Number(float64(d)/float64(time.Microsecond)) + "us"
	case d < time.Second:
		return Number(float64(d)/float64(time.Millisecond)) + "ms"
	}
	return Number(d.Seconds()) + "s"
}

// label says in a few words what an edge is like.
func label(s *flows.Stats) string {
	var parts []string
	if s.New > 0 {
		parts = append(parts, Rate(s))
	}
	if s.New == 0 && s.Open > 0 {
		parts = append(parts, Number(s.Open)+" open")
	}
	if d, known := s.Answer(0.5); known {
		parts = append(parts, Seconds(d))
	}
	if text := Failed(s); text != "" {
		parts = append(parts, text+" "+printable.Text(s.Causes()[0]))
	}
	return strings.Join(parts, ", ")
}

// details say all of it, a line each. Like a label, they have nothing that does not print.
func details(s *flows.Stats) string {
	lines := []string{fmt.Sprintf("%s new connections a second, %s open", Number(s.PerSecond), Number(s.Open))}
	if half, known := s.Answer(0.5); known {
		most, _ := s.Answer(0.95)
		lines = append(lines, fmt.Sprintf("first answer: half within %s, 95%% within %s", Seconds(half), Seconds(most)))
	}
	if text := Failed(s); text != "" {
		lines = append(lines, text+" fail: "+printable.Text(strings.Join(s.Causes(), ", ")))
	}
	lines = append(lines, fmt.Sprintf("%s from clients, %s to them", Bytes(s.BytesFrom), Bytes(s.BytesTo)),
		fmt.Sprintf("estimated from %d followed connections", s.Followed))
	return strings.Join(lines, "\n")
}

// Bytes is a number of bytes for people.
func Bytes(n float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB", "TB"} {
		if n < 1000 {
			return Number(n) + unit
		}
		n /= 1000
	}
	return Number(n) + "PB"
}

// Number is a number for people: it has two digits that count, and no fraction from 10 on.
func Number(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n >= 9.95:
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	text := strconv.FormatFloat(n, 'f', max(0, 1-int(math.Floor(math.Log10(n)))), 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
