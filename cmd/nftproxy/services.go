package main

import (
	"fmt"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"nftproxy/look/explain"
	"nftproxy/look/inspect"
	"nftproxy/look/nodestatus"
)

// nameOptions are the flags of a command about Services that its arguments name.
type nameOptions struct{ namespace, service string }

// addNamespace has a command take names of Services.
func (o *nameOptions) addNamespace(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", "", "only Services of this namespace; without it a NAME is "+
		"looked for in all")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]string,
		cobra.ShellCompDirective) {
		return inTables(cmd).completeServices(cmd, args, toComplete)
	}
}

// addService adds the flag that names a Service as the arguments do.
func (o *nameOptions) addService(cmd *cobra.Command) {
	o.addNamespace(cmd)
	cmd.Flags().StringVar(&o.service, "service", "", "only this Service, as the argument")
}

// selected makes a selection of the flags and of the arguments.
func (o *nameOptions) selected(names []string) (inspect.Selection, error) {
	return inspect.NewSelection(o.namespace, o.named(names))
}

// named are the Services of the flags and of the arguments.
func (o *nameOptions) named(names []string) []string {
	if o.service == "" {
		return names
	}
	return append(slices.Clone(names), o.service)
}

// query selects the same where the metrics server is asked.
func (o *nameOptions) query(names []string) url.Values {
	of := url.Values{nodestatus.QueryService: o.named(names)}
	if o.namespace != "" {
		of.Set(nodestatus.QueryNamespace, o.namespace)
	}
	return of
}

// target reads the name of a Service where a text is no address.
func (o *nameOptions) target(text string, noAddress error) (*inspect.Target, error) {
	t, err := inspect.ParseTarget(o.namespace, text)
	if err != nil {
		return nil, fmt.Errorf("%w; as a Service: %w", noAddress, err)
	}
	return &t, nil
}

// destination reads an address, or the name of a Service, which has to be looked for.
func (o *nameOptions) destination(text string) (explain.Destination, *inspect.Target, error) {
	to, err := explain.ParseDestination(text)
	if err == nil {
		return to, nil, nil
	}
	named, err := o.target(text, err)
	return to, named, err
}
