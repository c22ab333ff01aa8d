package control

import (
	"context"
	"net/netip"
)

// change is one write, and the address by which the kernel shows that the change has
// arrived. Without an address the proxy's log shows it, and no time from outside is
// taken.
type change struct {
	write func(context.Context) error
	seen  netip.Addr
}

// replacements give count endpoints another address.
func (w *world) replacements(count int) (list []change) {
	for _, at := range w.spots(count) {
		to := w.nextIP()
		list = append(list, change{
			write: func(ctx context.Context) error { return w.update(ctx, w.replace(at, to)) },
			seen:  to,
		})
	}
	return list
}
