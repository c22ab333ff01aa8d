package spelling_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"nftproxy/model/spelling"
)

func TestNearest(t *testing.T) {
	candidates := []string{"balance", "eject", "weight", "source-ranges", "on", "off"}
	for word, want := range map[string]string{
		"balence": "balance", "Balance": "balance", "blaance": "balance", "balanc": "balance", "balancee": "balance",
		"blnce": "balance",
		"ejcet": "eject", "ejects": "eject", "ejec": "eject", "ajact": "", "source-range": "source-ranges",
		"sourceranges": "source-ranges",
		"ON":           "on", "onn": "on", "non": "", "onto": "", "of": "off", "no": "", "": "", "colour": "",
		strings.Repeat("balance", 1000): "",
	} {
		if got := spelling.Nearest(word, candidates); got != want {
			t.Errorf("%.20q: got %q, want %q", word, got, want)
		}
	}
}

// TestNearestOfRandomWords: a word is near if a comparison of all letters with all says so.
func TestNearestOfRandomWords(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func() string {
		word := make([]byte, 6+rng.IntN(6))
		for i := range word {
			word[i] = "abc"[rng.IntN(3)]
		}
		return string(word)
	}
	near := 0
	for range 100_000 {
		a, b := random(), random()
		got, want := spelling.Nearest(a, []string{b}) != "", changes(a, b) <= 2
		if want {
			near++
		}
		if got != want {
			t.Fatalf("%q and %q: near %t, want %t", a, b, got, want)
		}
	}
	if near < 1000 {
		t.Errorf("only %d pairs are near", near)
	}
}

// changes counts what makes one word of another.
func changes(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
