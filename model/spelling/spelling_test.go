package spelling_test

import (
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
