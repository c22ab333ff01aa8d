package watch

// outage knows the resources whose last request failed. One that the API server
// refuses, such as ServiceCIDRs by a server that has none, it answers all the
// same.
type outage struct {
	// failing says of each of them whether it is refused.
	failing map[string]bool
	// over says that the last unanswered one has been answered.
	over bool
}

// failed notes a request that failed, and whether it was refused.
func (o *outage) failed(resource string, refused bool) {
	before := o.unanswered()
	if o.failing == nil {
		o.failing = map[string]bool{}
	}
	o.failing[resource] = refused
	o.over = (o.over || before) && !o.unanswered()
}

// succeeded notes a request that did not fail.
func (o *outage) succeeded(resource string) {
	delete(o.failing, resource)
	o.over = !o.unanswered()
}

func (o *outage) unanswered() bool {
	for _, refused := range o.failing {
		if !refused {
			return true
		}
	}
	return false
}

// takeOver says whether the outage has ended since the last call.
func (o *outage) takeOver() bool {
	over := o.over
	o.over = false
	return over
}
