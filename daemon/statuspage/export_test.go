package statuspage

import (
	"time"

	"nftproxy/model/pace"
)

// Unlimited takes the bound on CPU time from a page.
func Unlimited(p *Page) *Page {
	<-p.turn
	p.turn <- &pace.Budget{Rest: 1, Burst: time.Hour}
	return p
}
